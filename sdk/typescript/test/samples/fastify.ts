import Fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import { Client, hashSubject } from "@weir-dev/client";
import { guard } from "@weir-dev/client/fastify";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });

export const app = Fastify();
app.addHook(
  "onRequest",
  guard<FastifyRequest, FastifyReply>({
    client,
    subject: (request) => hashSubject(request.headers["x-api-key"]?.toString()),
    skip: (request) => request.url === "/healthz",
  }),
);
app.get("/orders/:id", async () => ({ ok: true })); // the resource is "GET /orders/:id"
