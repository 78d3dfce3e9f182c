import os

from weir_client import Client

client = Client(os.environ["WEIR_URL"], os.environ["WEIR_KEY"])
decision = client.check("user_42", "orders:create")
print("allowed:", decision.allowed)
