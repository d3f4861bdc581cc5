"""The official Python SDK against `ringfence mcp` and `ringfence serve`: what a real client sees.

Usage: python_sdk.py PROGRAM DIRECTORY. Each check prints a line; the first that fails ends it with a trace.
"""

import asyncio
import json
import os
import pty
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

PROGRAM, DIRECTORY = sys.argv[1:3]
WORKSPACE = os.path.join(DIRECTORY, "workspace")
ENVIRONMENT = {
    "HOME": os.path.join(DIRECTORY, "home"),
    "XDG_CONFIG_HOME": os.path.join(DIRECTORY, "config"),
    "RINGFENCE_STATE_DIR": os.path.join(DIRECTORY, "state"),
    "PATH": os.environ["PATH"],
}


def write(path, text):
    path = os.path.join(WORKSPACE, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(os.path.join(WORKSPACE, path)) as file:
        return file.read()


def stdio():
    arguments = ["mcp", "--workspace", WORKSPACE, "--preset", "ask"]
    return StdioServerParameters(command=PROGRAM, args=arguments, env=ENVIRONMENT)


def relay_token():
    """A token whose client may answer approval requests. Only a person at a terminal can make one, so this types the answer."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(PROGRAM, [PROGRAM, "token", "new", "sdk", "--scope", "call", "--scope", "relay"], ENVIRONMENT)
    seen, answered = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        seen += piece
        if not answered and b"[yes/no]" in seen:
            os.write(terminal, b"yes\n")
            answered = True
    os.waitpid(child, 0)
    return next(line for line in seen.decode().split() if line.startswith("rft_"))


@asynccontextmanager
async def served():
    """A server on a free port, and what makes a connection to it."""
    run = lambda *words: subprocess.run([PROGRAM, *words], env=ENVIRONMENT, check=True, capture_output=True, text=True)
    token = relay_token()
    try:
        command = [PROGRAM, "serve", "--address", "127.0.0.1:0", "--workspace", WORKSPACE, "--preset", "ask"]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        url = process.stderr.readline().split()[-1]

        def connect():
            client = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
            return streamable_http_client(url, http_client=client)

        yield connect
        process.terminate()
        process.wait(timeout=20)
    finally:
        run("token", "revoke", "sdk")


async def check_list_and_call(connect, mode):
    async with Client(connect(), mode=mode) as client:
        tools = (await client.list_tools()).tools
        names = [tool.name for tool in tools]
        assert "read_file" in names and "write_file" in names, names
        reading = next(tool for tool in tools if tool.name == "read_file")
        assert reading.annotations.read_only_hint is True, reading
        write("a.txt", "one\n")
        result = await client.call_tool("read_file", {"path": "a.txt"})
        assert not result.is_error and [block.text for block in result.content] == ["1\tone"], result
        missing = await client.call_tool("read_file", {"path": "missing"})
        assert missing.is_error and "`missing`" in missing.content[0].text, missing
        assert "{" not in missing.content[0].text, missing
        resource = await client.read_resource("ringfence:///a.txt")
        assert resource.contents[0].text == "one\n", resource


async def check_approval(connect, mode):
    asked = []

    async def say(action, approve):
        async def answer(context, params):
            asked.append(params.message)
            return types.ElicitResult(action=action, content={"approve": approve} if action == "accept" else None)

        return answer

    for action, approve, expected in [("accept", True, "new\n"), ("accept", False, "old\n"), ("decline", True, "old\n")]:
        write("b.txt", "old\n")
        async with Client(connect(), mode=mode, elicitation_callback=await say(action, approve)) as client:
            result = await client.call_tool("write_file", {"path": "b.txt", "content": "new\n"})
            assert read("b.txt") == expected, (action, approve, result)
            assert result.is_error == (expected == "old\n"), result
    assert len(asked) == 3 and all("+new" in message for message in asked), asked


async def check_progress_and_cancel(connect, mode):
    """A call that waits for a person reports that it does, and ends when it is cancelled."""
    write(".env", "KEY=hidden\n")
    heard = asyncio.Event()

    async def progress(done, total, message):
        if message and "ringfence approvals answer" in message:
            heard.set()

    async with Client(connect(), mode=mode) as client:
        call = asyncio.create_task(client.call_tool("read_file", {"path": ".env"}, progress_callback=progress))
        await asyncio.wait_for(heard.wait(), 30)
        call.cancel()
        try:
            await call
            raise AssertionError("it was cancelled")
        except asyncio.CancelledError:
            pass
        for _ in range(200):
            waiting = subprocess.run([PROGRAM, "approvals", "list", "--json"], env=ENVIRONMENT, capture_output=True)
            if json.loads(waiting.stdout) == []:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the request still waits")
        write("a.txt", "one\n")
        assert not (await client.call_tool("read_file", {"path": "a.txt"})).is_error


async def check_roots(connect, mode):
    write("in/a.txt", "one\n")
    write("out/b.txt", "two\n")

    async def roots(context):
        return types.ListRootsResult(roots=[types.Root(uri=f"file://{WORKSPACE}/in")])

    async with Client(connect(), mode=mode, list_roots_callback=roots) as client:
        inside = await client.call_tool("read_file", {"path": "in/a.txt"})
        outside = await client.call_tool("read_file", {"path": "out/b.txt"})
        assert not inside.is_error and outside.is_error, (inside, outside)


async def main():
    os.makedirs(WORKSPACE, exist_ok=True)
    async with served() as http:
        for transport, connect in [("stdio", stdio), ("http", http)]:
            for mode in ["legacy", "auto"]:
                for check in [check_list_and_call, check_approval, check_progress_and_cancel, check_roots]:
                    # Roots are gone from the newest revision.
                    if check is check_roots and mode == "auto":
                        continue
                    await asyncio.wait_for(check(connect, mode), 120)
                    print(f"ok: {transport} {mode} {check.__name__[6:]}", flush=True)


asyncio.run(main())
