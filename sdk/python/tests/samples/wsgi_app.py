import os

from weir_client import Client, hash_subject
from weir_client.wsgi import WeirMiddleware, header


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


app = WeirMiddleware(
    hello,
    Client(os.environ["WEIR_URL"], os.environ["WEIR_KEY"]),
    subject=lambda environ: hash_subject(header(environ, "X-Api-Key")),
    resource=lambda environ: "hello",
)
