import { Client } from "@weir-dev/client";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });
const decision = await client.check({ subject: "user_42", resource: "orders:create" });
console.log("allowed:", decision.allowed);
