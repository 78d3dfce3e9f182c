import os

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from weir_client import AsyncClient
from weir_client.asgi import WeirMiddleware, header


async def order(request):
    return JSONResponse({"id": request.path_params["id"]})  # the resource is "GET /orders/{id}"


app = Starlette(routes=[Route("/orders/{id}", order)])
app.add_middleware(
    WeirMiddleware,
    client=AsyncClient(os.environ["WEIR_URL"], os.environ["WEIR_KEY"]),
    subject=lambda scope: header(scope, "X-Customer"),
)
