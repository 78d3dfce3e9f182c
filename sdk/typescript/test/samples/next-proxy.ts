import { type NextRequest, NextResponse } from "next/server.js";
import { Client } from "@weir-dev/client";
import { guardProxy } from "@weir-dev/client/next";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });

export const proxy = guardProxy<NextRequest>({
  client,
  subject: (request) => request.headers.get("X-Customer"),
  resource: () => "pages",
  next: () => NextResponse.next(),
});
