import atexit
import os

from weir_client import Client

client = Client(os.environ["WEIR_URL"], os.environ["WEIR_KEY"], leases=True)
atexit.register(client.close)  # returns the units that are held
