import type { Hooks } from "@weir-dev/client";

export const hooks: Hooks = {
  begin: (call) => ({ end: (result) => console.log(call.name, result.durationMs, result.error ?? "ok") }),
  breakerChanged: (_from, to) => console.log("weir breaker:", to),
};
