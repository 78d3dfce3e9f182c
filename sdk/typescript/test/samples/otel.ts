import { metrics, trace } from "@opentelemetry/api";
import { Client } from "@weir-dev/client";
import { otelHooks } from "@weir-dev/client/otel";

export const client = new Client({
  url: process.env.WEIR_URL,
  key: process.env.WEIR_KEY,
  hooks: [otelHooks({ tracer: trace.getTracer("weir"), meter: metrics.getMeter("weir") })],
});
