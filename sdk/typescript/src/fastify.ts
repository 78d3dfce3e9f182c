/** A hook for Fastify. */
import type { Decision } from "./decision.js";
import type { MisuseError } from "./errors.js";
import { type GuardOptions, judge, type Problem, routeName } from "./guard.js";
import { copyHeaders, type HeaderTarget } from "./headers.js";
import { guardHeaders, type NodeResponse } from "./node.js";

/** The part of a request that the hook uses, as in Fastify. */
export interface FastifyRequest {
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly routeOptions?: { readonly url?: string | undefined };
}

/** The part of a reply that the hook uses, as in Fastify. */
export interface FastifyReply {
  readonly raw: NodeResponse & { readonly writableFinished: boolean; once(event: "close", listener: () => void): unknown };
  code(status: number): unknown;
  getHeader(name: string): unknown;
  header(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  send(body: Uint8Array): unknown;
}

export interface FastifyGuardOptions<Req, Reply> extends GuardOptions<Req> {
  /** Answers a denied request. The rate-limit headers are already set. */
  onDenied?(request: Req, reply: Reply, decision: Decision): unknown;
  /** Answers a request whose check was a mistake of this application. The default logs the error and answers 500. */
  onMisuse?(request: Req, reply: Reply, error: MisuseError): unknown;
}

/**
 * Passes a request on if Weir allows it. Add it before routes or to one of them:
 *
 *     app.addHook("onRequest", guard({ client, subject: (request) => request.headers["x-customer"] }));
 */
export function guard<Req extends FastifyRequest, Reply extends FastifyReply>(
  options: FastifyGuardOptions<Req, Reply>,
): (request: Req, reply: Reply) => Promise<unknown> {
  return async (request, reply) => {
    const gone = new AbortController();
    reply.raw.once("close", () => {
      if (!reply.raw.writableFinished) gone.abort();
    });
    const { traceparent } = request.headers;
    const verdict = await judge(options, request, {
      route: routeName(request.method, request.routeOptions?.url),
      traceparent: typeof traceparent === "string" ? traceparent : undefined,
      signal: gone.signal,
    });
    const target: HeaderTarget = {
      getHeader: (name) => reply.getHeader(name),
      setHeader: (name, value) => reply.header(name, value),
      removeHeader: (name) => reply.removeHeader(name),
    };
    if (verdict.kind === "pass") {
      if (verdict.decision) guardHeaders(verdict.decision, reply.raw, target);
      return undefined;
    }
    if (verdict.kind === "denied") {
      copyHeaders(verdict.decision, target);
      if (options.onDenied) await options.onDenied(request, reply, verdict.decision);
      else send(reply, verdict.answer);
    } else if (verdict.kind === "misuse") {
      if (options.onMisuse) await options.onMisuse(request, reply, verdict.error);
      else send(reply, verdict.log());
    }
    return reply;
  };
}

function send(reply: FastifyReply, { status, headers, body }: Problem): void {
  reply.code(status);
  for (const [name, value] of Object.entries(headers)) reply.header(name, value);
  reply.send(new TextEncoder().encode(body)); // for a string, Fastify would add a charset, which JSON does not have
}
