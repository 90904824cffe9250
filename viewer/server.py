"""The local server of the live page: torch answers, so any model that opens is live. Only this machine can ask.

It listens on the loopback interface alone. The page's address holds a random token, without which nothing is answered,
and a request for another host name is refused, so that no web page can reach it by a name that points here.
"""

import secrets
import socket
from asyncio import get_running_loop
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from streamscope.cli.errors import InputError
from streamscope.viewer import bundle
from streamscope.viewer.session import Session, Shown, page_data

LOOPBACK = "127.0.0.1"
LARGEST = 2**20  # bytes of a question
HEADERS = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def application(shown: list[Shown], text: str, token: str, port: int) -> Starlette:
    """The page at / and its questions; `token` in the page's address, and in a header of every question."""
    session, hosts = Session(shown), {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    page = bundle.page(page_data(shown, "server", text))
    worker = ThreadPoolExecutor(1)  # answers in the order of the questions, and its hooks are of one thread

    def refused(request: Request, sent_token: str) -> Response | None:
        if request.headers.get("host", "") not in hosts:
            return JSONResponse({"error": "this server only answers on this machine"}, 403, HEADERS)
        if not secrets.compare_digest(sent_token.encode(), token.encode()):
            return JSONResponse({"error": "the token of the page's address is missing or wrong"}, 403, HEADERS)
        return None

    async def show(request: Request) -> Response:
        return refused(request, request.query_params.get("token", "")) or HTMLResponse(page, headers=HEADERS)

    async def ask(request: Request) -> Response:
        if (refusal := refused(request, request.headers.get("x-streamscope-token", ""))) is not None:
            return refusal
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return JSONResponse({"error": f"a question has at most {LARGEST:,} bytes"}, 400, HEADERS)
        reply = get_running_loop().run_in_executor(worker, session.reply, request.path_params["kind"], body)
        status, content_type, answer = await reply
        return Response(answer, status, HEADERS, content_type)

    return Starlette(routes=[Route("/", show), Route("/{kind}", ask, methods=["POST"])])


def serve(shown: list[Shown], text: str = "", port: int = 0) -> None:
    """Serve the page until Ctrl-C; prints its address. Raises `InputError` for a port that is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError(f"port {port}: {error.strerror}; leave --port out for a free one") from None
        listener.listen()  # before the address is printed
        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        app = application(shown, text, token, port)
        print(f"http://{LOOPBACK}:{port}/?token={token}")
        print("open this address in a browser; Ctrl-C ends the server", flush=True)
        config = uvicorn.Config(app, access_log=False, log_level="warning", server_header=False)
        uvicorn.Server(config).run(sockets=[listener])
