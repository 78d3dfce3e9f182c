/** Guards for Next: for route handlers, and for the proxy (called middleware before Next 16). */
import { guardFetch, type WebGuardOptions } from "./web.js";

/** The options of a guard for a route handler. */
export interface RouteGuardOptions<R extends Request = Request> extends WebGuardOptions<R> {
  /** The route template as in its directory, such as "/orders/[id]". Next does not pass it to handlers. */
  readonly route: string;
}

/**
 * Guards a route handler:
 *
 *     export const GET = guardRoute(handler, { client, subject, route: "/orders/[id]" });
 */
export function guardRoute<R extends Request, Rest extends unknown[]>(
  handler: (request: R, ...rest: Rest) => Response | Promise<Response>,
  options: RouteGuardOptions<R>,
): (request: R, ...rest: Rest) => Promise<Response> {
  return guardFetch(handler, options);
}

/** The options of a guard for the proxy. */
export interface ProxyGuardOptions<R extends Request = Request> extends WebGuardOptions<R> {
  /** Passes a request on: () => NextResponse.next(). The rate-limit headers are added to its result. */
  next(request: R): Response | Promise<Response>;
  /** Returns the resource. The proxy runs before routing, so there is no default. */
  resource(request: R): string | Promise<string>;
}

/**
 * Guards all requests that reach the proxy:
 *
 *     export const proxy = guardProxy({ client, subject, resource, next: () => NextResponse.next() });
 */
export function guardProxy<R extends Request>(options: ProxyGuardOptions<R>): (request: R) => Promise<Response> {
  return guardFetch((request: R) => options.next(request), options);
}
