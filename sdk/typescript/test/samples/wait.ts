import type { Client } from "@weir-dev/client";

export async function exportAll(client: Client, customer: string): Promise<boolean> {
  const decision = await client.wait({ subject: customer, resource: "exports:csv" }, { maxWaitMs: 5000 });
  return decision.allowed;
}
