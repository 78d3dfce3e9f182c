import type { Client } from "@weir-dev/client";

export async function importRows(client: Client, customer: string, rows: string[]): Promise<number> {
  return client.withLease({ subject: customer, resource: "rows:import" }, rows.length, async (lease) => {
    for (const i of rows.keys()) {
      if (!(await lease.check()).allowed) return i;
    }
    return rows.length;
  });
}
