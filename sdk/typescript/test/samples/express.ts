import express, { type Request, type Response } from "express";
import { Client } from "@weir-dev/client";
import { guard } from "@weir-dev/client/express";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });
const limit = guard<Request, Response>({ client, subject: (request) => request.get("X-Customer") });

export const app = express();
app.get("/orders/:id", limit, (request, response) => {
  response.json({ id: request.params.id }); // the resource is "GET /orders/:id"
});
