/**
 * Returns a subject for a secret or a long value, such as an API key of your customer: "sha256:" and the hexadecimal
 * SHA-256. For values that can be guessed, such as addresses, pass your own secret: "hmac-sha256:" and the
 * HMAC-SHA-256. An empty or missing value stays empty, so that a missing subject is still refused.
 */
export async function hashSubject(value: string | null | undefined, secret?: string): Promise<string> {
  if (!value) return "";
  const { subtle } = await webCrypto();
  const encoder = new TextEncoder();
  if (secret === undefined) return `sha256:${hex(await subtle.digest("SHA-256", encoder.encode(value)))}`;
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await subtle.importKey("raw", encoder.encode(secret), algorithm, false, ["sign"]);
  return `hmac-sha256:${hex(await subtle.sign("HMAC", key, encoder.encode(value)))}`;
}

/** Node 18 has Web Crypto only in a module. Its name is a variable, so that bundlers do not resolve it. */
async function webCrypto(): Promise<Crypto> {
  if (globalThis.crypto) return globalThis.crypto;
  const name = "node:crypto";
  return ((await import(name)) as { webcrypto: Crypto }).webcrypto;
}

function hex(bytes: ArrayBuffer): string {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
