import { type Client, MisuseError } from "@weir-dev/client";

export async function createOrder(client: Client, customer: string): Promise<string> {
  try {
    const decision = await client.check({ subject: customer, resource: "orders:create" });
    if (decision.noDecision) console.warn("no decision:", decision.noDecision.cause); // the fallback has answered
    if (!decision.allowed) return `denied: try again in ${decision.retryAfterMs} ms`;
    return "created";
  } catch (error) {
    if (error instanceof MisuseError) return `wrong: ${error.field} ${error.fix}`; // the call is wrong
    throw error; // cancelled by the caller's signal
  }
}
