/** Middleware for Hono. */
import type { Decision } from "./decision.js";
import type { MisuseError } from "./errors.js";
import { type GuardOptions, judge, type Problem, routeName } from "./guard.js";
import { copyHeaders } from "./headers.js";

/** The part of a context that the middleware uses, as in Hono. */
export interface HonoContext {
  readonly req: {
    readonly method: string;
    readonly raw: Request;
    readonly routePath: string;
    readonly routeIndex: number;
    readonly matchedRoutes: readonly { readonly path: string; readonly method: string }[];
    header(name: string): string | undefined;
  };
  readonly res: Response;
  header(name: string, value?: string): void;
}

export interface HonoGuardOptions<C> extends GuardOptions<C> {
  /** Answers a denied request. The rate-limit headers are added. */
  onDenied?(context: C, decision: Decision): Response | Promise<Response>;
  /** Answers a request whose check was a mistake of this application. The default logs the error and answers 500. */
  onMisuse?(context: C, error: MisuseError): Response | Promise<Response>;
}

/**
 * Passes a request on if Weir allows it. Put it before routes or on one of them:
 *
 *     app.use(guard({ client, subject: (c) => c.req.header("X-Customer") }));
 */
export function guard<C extends HonoContext>(
  options: HonoGuardOptions<C>,
): (context: C, next: () => Promise<void>) => Promise<Response | void> {
  return async (context, next) => {
    const verdict = await judge(options, context, {
      route: routeName(context.req.method, template(context)),
      traceparent: context.req.header("traceparent"),
      signal: context.req.raw.signal,
    });
    switch (verdict.kind) {
      case "pass":
        await next();
        if (verdict.decision) add(context, verdict.decision);
        return undefined;
      case "denied": {
        const response = options.onDenied ? await options.onDenied(context, verdict.decision) : responseOf(verdict.answer);
        copyHeaders(verdict.decision, response.headers);
        return response;
      }
      case "misuse":
        return options.onMisuse ? options.onMisuse(context, verdict.error) : responseOf(verdict.log());
      case "gone":
        return new Response(null, { status: 499 });
    }
  };
}

/**
 * The path of the guard itself, or for a guard of many paths, such as "*", that of the first route behind it. Hono has
 * matched all routes when middleware runs. Middleware behind the guard has the method ALL.
 */
function template({ req }: HonoContext): string | undefined {
  if (!req.routePath.includes("*")) return req.routePath;
  return req.matchedRoutes.slice(req.routeIndex).find(({ path, method }) => method !== "ALL" && !path.includes("*"))?.path;
}

/** Adds the decision's headers to the handler's answer. The context replaces an answer that is read-only. */
function add(context: HonoContext, decision: Decision): void {
  copyHeaders(decision, {
    get: (name) => context.res.headers.get(name),
    set: (name, value) => context.header(name, value),
    delete: (name) => context.header(name),
  });
}

function responseOf({ status, headers, body }: Problem): Response {
  return new Response(body, { status, headers: { ...headers } });
}
