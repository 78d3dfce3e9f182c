import type { components } from "./api.js";
import { invalid, MisuseError } from "./errors.js";

/** A question: may the subject do this now? Only the subject is required. */
export interface Check {
  /** What to limit: 1 to 256 bytes of UTF-8 without control characters. */
  readonly subject: string;
  /** The resource. The default is "default". */
  readonly resource?: string | undefined;
  /** Units to take: a whole number from 0 to 10^15. The default is 1. */
  readonly cost?: number | undefined;
  /** The plan whose limits apply. The default is the subject's own. */
  readonly plan?: string | undefined;
  /** At most 16 further values that rules can count by. */
  readonly attributes?: Readonly<Record<string, string>> | undefined;
  /**
   * Makes it safe to send the check again: within 60 s, the same key gets the first decision and counts once. 1 to 64
   * visible ASCII characters.
   */
  readonly idempotencyKey?: string | undefined;
}

export const maxBatch = 100;
const maxNameBytes = 256;
const maxCost = 1e15;
const maxAttributes = 16;
const nameRule = "Pass 1 to 256 bytes of UTF-8 without control characters.";
const attributeName = /^[A-Za-z0-9_.-]{1,64}$/;
const visibleASCII = /^[!-~]{1,64}$/;
const defaultResource = "default";

/** A valid check with its defaults filled in. */
export class Question {
  constructor(
    readonly subject: string,
    readonly resource: string,
    readonly cost: number,
    readonly plan: string,
    readonly attributes: Readonly<Record<string, string>>,
    readonly idempotencyKey: string,
    readonly explain: boolean,
  ) {}

  /** The question as the server reads it, without defaults. */
  json(): Partial<components["schemas"]["CheckRequest"]> {
    const body: Partial<components["schemas"]["CheckRequest"]> = { subject: this.subject };
    if (this.resource !== defaultResource) body.resource = this.resource;
    if (this.cost !== 1) body.cost = this.cost;
    if (this.plan !== "") body.plan = this.plan;
    if (Object.keys(this.attributes).length > 0) body.attributes = this.attributes;
    if (this.explain) {
      body.dry_run = true;
      body.explain = true;
    }
    return body;
  }

  /** The same question with another cost. */
  costing(cost: number): Question {
    return new Question(this.subject, this.resource, cost, this.plan, this.attributes, "", false);
  }

  /** A text that is the same for two questions if and only if they are equal. */
  key(): string {
    return `${this.cost} ${this.kind()}`;
  }

  /** A text that is the same for two questions if and only if they differ at most in their cost. */
  kind(): string {
    const attributes = Object.keys(this.attributes).sort().map((name) => [name, this.attributes[name]]);
    return JSON.stringify([this.subject, this.resource, this.plan, attributes]);
  }
}

/** Validates a check and fills in its defaults. A peek has cost 0. */
export function ask(check: Check, kind: "check" | "peek" | "explain" = "check"): Question {
  if (typeof check !== "object" || check === null) throw invalid("/subject", "is absent", 'Pass an object such as { subject: "user_42" }.');
  const subjectProblem = nameProblem(check.subject);
  if (subjectProblem) throw invalid("/subject", subjectProblem, `${nameRule} hashSubject shortens longer values and hides secrets.`);
  const resource = check.resource ?? "";
  const resourceProblem = resource === "" ? "" : nameProblem(resource);
  if (resourceProblem) throw invalid("/resource", resourceProblem, nameRule);
  if (kind === "peek" && check.cost) throw invalid("/cost", `is ${check.cost} in a peek, which has cost 0`, "Omit the cost.");
  const cost = check.cost ?? (kind === "peek" ? 0 : 1);
  if (!Number.isInteger(cost) || cost < 0 || cost > maxCost) {
    throw invalid("/cost", `is ${shown(cost)}`, "Pass a whole number from 0 to 1000000000000000.");
  }
  const plan = check.plan ?? "";
  if (typeof plan !== "string") throw invalid("/plan", `is ${shown(plan)}`, "Pass the slug of a plan.");
  const key = check.idempotencyKey ?? "";
  if (key !== "" && !(typeof key === "string" && visibleASCII.test(key))) {
    throw invalid("header:Idempotency-Key", `is ${shown(key)}`, "Pass 1 to 64 visible ASCII characters.");
  }
  return new Question(check.subject, resource || defaultResource, cost, plan, attributesOf(check), key, kind === "explain");
}


/** Validates the checks of a batch. */
export function askBatch(checks: readonly Check[]): Question[] {
  if (!Array.isArray(checks) || checks.length === 0 || checks.length > maxBatch) {
    throw invalid("/checks", Array.isArray(checks) ? `has ${checks.length} entries` : "is not a list", "Pass 1 to 100 checks.");
  }
  return checks.map((check: Check, i) => {
    try {
      const question = ask(check);
      if (question.idempotencyKey !== "") throw invalid("/idempotency_key", "is set", "Omit it: checks of a batch cannot have a key.");
      return question;
    } catch (error) {
      throw error instanceof MisuseError ? moved(error, `/checks/${i}`) : error;
    }
  });
}

function moved(error: MisuseError, to: string): MisuseError {
  const first = error.errors[0];
  const pointer = to + error.field.replace(/^header:Idempotency-Key$/, "/idempotency_key");
  return new MisuseError({
    status: null,
    code: error.code,
    detail: `${to.slice(1)}: ${error.detail}`,
    errors: [{ pointer, message: first?.message ?? "", fix: error.fix }],
  });
}

function attributesOf(check: Check): Readonly<Record<string, string>> {
  const attributes = check.attributes ?? {};
  if (typeof attributes !== "object") throw invalid("/attributes", "is no object", "Pass an object of strings.");
  const names = Object.keys(attributes);
  if (names.length > maxAttributes) throw invalid("/attributes", `has ${names.length} entries`, "Pass at most 16 attributes.");
  for (const name of names) {
    if (!attributeName.test(name) || name === "subject" || name === "resource") {
      throw invalid(`/attributes/${name}`, "is not the name of an attribute", "Use 1 to 64 of A-Z, a-z, 0-9, _ . - and neither subject nor resource.");
    }
    const problem = nameProblem(attributes[name]);
    if (problem) throw invalid(`/attributes/${name}`, problem, nameRule);
  }
  return attributes;
}

/** Returns what is wrong with a subject, a resource or an attribute's value, or "". */
function nameProblem(name: unknown): string {
  if (typeof name !== "string") return name === undefined || name === null ? "is absent" : `is ${shown(name)}, which is no string`;
  if (name === "") return "is empty";
  let bytes = 0;
  for (let i = 0; i < name.length; i++) {
    const c = name.charCodeAt(i);
    if (c < 0x20 || (c >= 0x7f && c <= 0x9f)) return `contains the control character U+${c.toString(16).toUpperCase().padStart(4, "0")}`;
    if (c < 0x80) bytes += 1;
    else if (c < 0x800) bytes += 2;
    else if (c < 0xd800 || c > 0xdfff) bytes += 3;
    else if (c < 0xdc00 && isLowSurrogate(name.charCodeAt(i + 1))) {
      bytes += 4;
      i++;
    } else return "contains a lone surrogate";
  }
  return bytes > maxNameBytes ? `has ${bytes} bytes` : "";
}

function isLowSurrogate(c: number): boolean {
  return c >= 0xdc00 && c <= 0xdfff;
}

/** A value in an error, truncated to a line. */
function shown(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 80 ? `${text.slice(0, 80)}...` : text;
}
