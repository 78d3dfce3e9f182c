import type { Decision } from "./decision.js";
import type { MisuseError } from "./errors.js";
import { type GuardOptions, judge, type Problem, routeName } from "./guard.js";
import { copyHeaders } from "./headers.js";

/** The options of a guard for handlers that take a Request and return a Response. */
export interface WebGuardOptions<R extends Request = Request> extends GuardOptions<R> {
  /** The route template, such as "/orders/[id]". Without it, and without resource, the resource is the method. */
  readonly route?: string | undefined;
  /** Answers a denied request. The rate-limit headers are added. */
  onDenied?(request: R, decision: Decision): Response | Promise<Response>;
  /** Answers a request whose check was a mistake of this application. The default logs the error and answers 500. */
  onMisuse?(request: R, error: MisuseError): Response | Promise<Response>;
}

/**
 * Guards a handler of the Fetch API: of Deno, Bun, Workers, or a route handler of Next.
 *
 *     export default { fetch: guardFetch(handler, { client, subject }) };
 */
export function guardFetch<R extends Request, Rest extends unknown[]>(
  handler: (request: R, ...rest: Rest) => Response | Promise<Response>,
  options: WebGuardOptions<R>,
): (request: R, ...rest: Rest) => Promise<Response> {
  return async (request, ...rest) => {
    const verdict = await judge(options, request, {
      route: routeName(request.method, options.route),
      traceparent: request.headers.get("traceparent") ?? undefined,
      signal: request.signal,
    });
    switch (verdict.kind) {
      case "pass":
        return withHeaders(await handler(request, ...rest), verdict.decision);
      case "denied":
        return withHeaders(options.onDenied ? await options.onDenied(request, verdict.decision) : responseOf(verdict.answer), verdict.decision);
      case "misuse":
        return options.onMisuse ? options.onMisuse(request, verdict.error) : responseOf(verdict.log());
      case "gone":
        return new Response(null, { status: 499 });
    }
  };
}

function responseOf({ status, headers, body }: Problem): Response {
  return new Response(body, { status, headers: { ...headers } });
}

/** Adds the decision's headers to an answer, whose own headers may be read-only. */
function withHeaders(response: Response, decision: Decision | null): Response {
  if (decision === null) return response;
  try {
    copyHeaders(decision, response.headers);
    return response;
  } catch {
    const copy = new Response(response.body, response);
    copyHeaders(decision, copy.headers);
    return copy;
  }
}
