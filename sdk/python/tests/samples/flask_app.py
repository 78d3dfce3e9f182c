import os

from flask import Flask

from weir_client import Client
from weir_client.wsgi import WeirMiddleware, header

app = Flask(__name__)


@app.get("/orders/<id>")
def order(id):
    return {"id": id}  # the resource is "GET /orders/<id>"


app.wsgi_app = WeirMiddleware(
    app.wsgi_app,
    Client(os.environ["WEIR_URL"], os.environ["WEIR_KEY"]),
    subject=lambda environ: header(environ, "X-Customer"),
    skip=lambda environ: environ["PATH_INFO"] == "/healthz",
)
