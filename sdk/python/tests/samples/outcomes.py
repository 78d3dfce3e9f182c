import logging

from weir_client import Client, MisuseError


def create_order(client: Client, customer: str) -> str:
    try:
        decision = client.check(customer, "orders:create")
    except MisuseError as error:  # the call is wrong
        return f"wrong: {error.field} {error.fix}"
    if decision.no_decision:  # the fallback has answered
        logging.warning("no decision: %s", decision.no_decision.cause)
    if not decision.allowed:
        return f"denied: try again in {decision.retry_after_ms} ms"
    return "created"
