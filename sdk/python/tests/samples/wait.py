from weir_client import Client


def export_all(client: Client, customer: str) -> bool:
    decision = client.wait(customer, "exports:csv", max_wait_ms=5000)
    return decision.allowed
