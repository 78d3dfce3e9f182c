import { type NextRequest, NextResponse } from "next/server.js";
import { Client } from "@weir-dev/client";
import { guardRoute } from "@weir-dev/client/next";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });

async function orders(_request: NextRequest, { params }: { params: Promise<{ id: string }> }) {
  return NextResponse.json({ id: (await params).id });
}

export const GET = guardRoute(orders, {
  client,
  subject: (request) => request.headers.get("X-Customer"),
  route: "/orders/[id]", // the resource is "GET /orders/[id]"
});
