// A door in front of `ringfence serve` for clients that cannot show a token: it adds one to every request.
// Usage: with_token.mjs URL TOKEN PORT

import http from 'node:http';

const [url, token, port] = process.argv.slice(2);
const target = new URL(url);

const door = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${token}` };
  const { hostname: host, port } = target;
  const inside = http.request({ host, port, path: request.url, method: request.method, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  inside.on('error', () => response.destroy());
  response.on('close', () => inside.destroy());
  request.pipe(inside);
});

door.listen(Number(port), '127.0.0.1', () => console.log('open'));
