import { type Context, Hono } from "hono";
import { Client } from "@weir-dev/client";
import { guard } from "@weir-dev/client/hono";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });
const limit = guard<Context>({ client, subject: (c) => c.req.header("X-Customer") });

export const app = new Hono();
app.get("/orders/:id", limit, (c) => c.json({ id: c.req.param("id") })); // the resource is "GET /orders/:id"
