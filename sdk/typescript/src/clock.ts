/** The clock of a client. Tests can replace it. */
export interface Clock {
  /** Monotonic milliseconds, with any origin. */
  now(): number;
  /** Milliseconds since 1970. */
  unixMs(): number;
  /** Resolves after this many milliseconds, or rejects with the signal's reason. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Calls run at this interval until the returned function is called. It does not keep the process alive. */
  every(ms: number, run: () => void): () => void;
}

/** The maximum duration of a timer. */
const longestTimer = 2_147_483_647;

export const systemClock: Clock = {
  now: () => performance.now(),
  unixMs: () => Date.now(),
  async sleep(ms, signal) {
    for (let left = ms; left > 0; left -= longestTimer) {
      await timer(Math.min(left, longestTimer), signal);
    }
  },
  every(ms, run) {
    const id = setInterval(run, ms);
    (id as { unref?: () => void }).unref?.(); // only Node, Bun and Deno have it
    return () => clearInterval(id);
  },
};

function timer(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const aborted = () => {
      clearTimeout(id);
      reject(signal?.reason);
    };
    const id = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/**
 * The deadline of one call. Its signal aborts when the time is up or when the caller aborts. dispose must be called
 * when the call has ended.
 */
export class Deadline {
  timedOut = false;
  readonly #ends: number;
  readonly #controller = new AbortController();
  readonly #timer: ReturnType<typeof setTimeout>;
  readonly #caller: AbortSignal | undefined;
  readonly #abort: () => void;

  constructor(ms: number, caller: AbortSignal | undefined) {
    this.#ends = performance.now() + ms;
    this.#caller = caller;
    this.#abort = () => this.#controller.abort(caller?.reason);
    this.#timer = setTimeout(() => {
      this.timedOut = true;
      this.#controller.abort(new DOMException("The timeout of the client has passed", "TimeoutError"));
    }, Math.min(ms, longestTimer));
    if (caller?.aborted) {
      this.#abort();
    } else {
      caller?.addEventListener("abort", this.#abort, { once: true });
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Whether the caller has ended the call, and not the timeout. */
  get cancelled(): boolean {
    return this.signal.aborted && !this.timedOut;
  }

  /** The remaining milliseconds. */
  get left(): number {
    return Math.max(0, this.#ends - performance.now());
  }

  dispose(): void {
    clearTimeout(this.#timer);
    this.#caller?.removeEventListener("abort", this.#abort);
  }
}
