import { Client } from "@weir-dev/client";

export const client = new Client({
  url: process.env.WEIR_URL,
  key: process.env.WEIR_KEY,
  timeoutMs: 50,
  onFailure: "local",
  localShare: 0.25, // four processes share each limit
  batching: true,
});
