/** Middleware for Express, and for other frameworks with (request, response, next) of Node. */
import type { Decision } from "./decision.js";
import type { MisuseError } from "./errors.js";
import { type GuardOptions, judge, type Problem, routeName } from "./guard.js";
import { copyHeaders } from "./headers.js";
import { guardHeaders, type NodeResponse } from "./node.js";

/** The part of a request that the middleware uses, as in Express. */
export interface ExpressRequest {
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly route?: { readonly path?: unknown };
}

/** The part of a response that the middleware uses, as in Express. */
export interface ExpressResponse extends NodeResponse {
  statusCode: number;
  readonly writableFinished: boolean;
  end(body: string): unknown;
  once(event: "close", listener: () => void): unknown;
}

export interface ExpressGuardOptions<Req, Res> extends GuardOptions<Req> {
  /** Answers a denied request. The rate-limit headers are already set. */
  onDenied?(request: Req, response: Res, decision: Decision): unknown;
  /** Answers a request whose check was a mistake of this application. The default logs the error and answers 500. */
  onMisuse?(request: Req, response: Res, error: MisuseError): unknown;
}

/**
 * Passes a request on if Weir allows it. Put it on routes, where the route template is known. In a router that is
 * mounted at a path, the resource is the route within the router, unless the option resource sets another one.
 *
 *     app.get("/orders/:id", guard({ client, subject: (request) => request.get("X-Customer") }), orders);
 */
export function guard<Req extends ExpressRequest, Res extends ExpressResponse>(
  options: ExpressGuardOptions<Req, Res>,
): (request: Req, response: Res, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    const gone = new AbortController();
    response.once("close", () => {
      if (!response.writableFinished) gone.abort();
    });
    handle(options, request, response, gone.signal).then((pass) => {
      if (pass) next();
    }, next);
  };
}

/** Whether the request is allowed. Otherwise it is answered. */
async function handle<Req extends ExpressRequest, Res extends ExpressResponse>(
  options: ExpressGuardOptions<Req, Res>,
  request: Req,
  response: Res,
  signal: AbortSignal,
): Promise<boolean> {
  const { traceparent } = request.headers;
  const verdict = await judge(options, request, {
    route: routeName(request.method, request.route?.path),
    traceparent: typeof traceparent === "string" ? traceparent : undefined,
    signal,
  });
  if (verdict.kind === "pass" && verdict.decision) guardHeaders(verdict.decision, response);
  if (verdict.kind === "denied") {
    copyHeaders(verdict.decision, response);
    if (options.onDenied) await options.onDenied(request, response, verdict.decision);
    else send(response, verdict.answer);
  } else if (verdict.kind === "misuse") {
    if (options.onMisuse) await options.onMisuse(request, response, verdict.error);
    else send(response, verdict.log());
  }
  return verdict.kind === "pass";
}

function send(response: ExpressResponse, { status, headers, body }: Problem): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  response.end(body);
}
