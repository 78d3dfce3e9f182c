import { Client, guardFetch } from "@weir-dev/client";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });

export default {
  fetch: guardFetch(() => new Response("hello"), {
    client,
    subject: (request) => request.headers.get("X-Customer"),
    route: "/hello", // the resource is "GET /hello"
  }),
};
