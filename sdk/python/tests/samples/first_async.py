import asyncio
import os

from weir_client import AsyncClient


async def main():
    async with AsyncClient(os.environ["WEIR_URL"], os.environ["WEIR_KEY"]) as client:
        decision = await client.check("user_42", "orders:create")
        print("allowed:", decision.allowed)


asyncio.run(main())
