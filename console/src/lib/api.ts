/** Asks the API in the session of this browser. Every refusal becomes a Problem, whose words may be shown. */

export interface Fault {
  path: string;
  message: string;
  known: string[];
  line?: number | null;
  column?: number | null;
  length?: number | null;
}

const LONGEST_MS = 45_000;
const SILENT_MS = 5_000;
/** No form of another site can send it. */
const HEADER = "X-Inference-Store-Console";
const ROOT = new URL("../v1/", document.baseURI);

/** A whole address, which an answer of the API has named. */
const ADDRESS = /^(?:https?:)?\//;

const SIGNED_IN = "signed-in";
const REFUSED = "refused";
const SILENT = "silent";
const events = new EventTarget();
/** How often somebody has signed in: a refusal of a request from before is no news. */
let signIns = 0;

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly faults: Fault[] = [],
    readonly retrySeconds: number | null = null,
  ) {
    super(detail);
  }

  /** Whether the same question may be answered a little later. */
  get passes(): boolean {
    return this.status === 0 || this.status === 429 || this.status === 503;
  }
}

const UNREACHABLE = new Problem(
  0,
  "The API is not responding",
  "It may be restarting, or the network is down. This page retries automatically.",
);
const TOO_SLOW = new Problem(
  -1,
  "Timed out",
  `There was no response within ${LONGEST_MS / 1000} seconds. Choose a shorter time range or a narrower filter.`,
);

/** Browsers resolve such segments, escaped or not: a request about the model `..` would be about all models. */
const RELATIVE = /^(?:\.|%2e){0,2}$/i;
const NO_ID = new Problem(
  422,
  "Invalid ID",
  "An ID cannot be empty, `.` or `..`: the browser would ask for something else, so nothing was requested.",
);

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, undefined, signal)).json() as Promise<T>;
}

/** Asks for one object, also where the API has lines. */
export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await send("POST", path, body, signal, null, LONGEST_MS, { Accept: "application/json" })).json() as Promise<T>;
}

/** An answer with the revision that the next change of the same thing has to name. */
export interface Revised<T> {
  data: T;
  revision: string | null;
}

export async function getRevised<T>(path: string, signal?: AbortSignal): Promise<Revised<T>> {
  return readRevised(await send("GET", path, undefined, signal));
}

/** Changes something: `revision` is the one that was read, if the API asks for it. */
export async function change<T>(
  method: "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  body?: unknown,
  revision?: string | null,
): Promise<Revised<T>> {
  return readRevised(await send(method, path, body, undefined, revision));
}

async function readRevised<T>(response: Response): Promise<Revised<T>> {
  const text = await response.text();
  return { data: (text ? JSON.parse(text) : null) as T, revision: response.headers.get("ETag") };
}

export async function getBlob(path: string, signal?: AbortSignal): Promise<Blob> {
  return (await send("GET", path, undefined, signal)).blob();
}

/** Looks whether the session goes on: the API does not count it as a use of the session. */
export async function watch<T>(path: string, signal: AbortSignal): Promise<T> {
  return (await send("GET", path, undefined, signal, null, null, { [HEADER]: "watch" })).json() as Promise<T>;
}

/** Returns the bytes of an answer that has no end of its own. */
export async function readStream(path: string, signal: AbortSignal): Promise<ReadableStream<BufferSource>> {
  const { body } = await send("GET", path, undefined, signal, null, null);
  if (!body) throw UNREACHABLE;
  return body;
}

/** Signs in: the key is sent this once and forgotten; a cookie that no script can read names the session. */
export async function signIn(key: string): Promise<void> {
  const headers = { Authorization: `Bearer ${key.trim()}` };
  await send("POST", "session", undefined, undefined, null, LONGEST_MS, headers);
  signIns += 1;
  events.dispatchEvent(new Event(SIGNED_IN));
}

export async function signOut(): Promise<void> {
  await send("DELETE", "session", undefined);
}

/** Acts after each sign-in; returns what ends that. */
export function onSignIn(act: () => void): () => void {
  events.addEventListener(SIGNED_IN, act);
  return () => events.removeEventListener(SIGNED_IN, act);
}

/** Acts whenever the API does not know who asks, or no longer does; returns what ends that. */
export function onRefusal(act: (problem: Problem) => void): () => void {
  const hear = (event: Event) => act((event as CustomEvent<Problem>).detail);
  events.addEventListener(REFUSED, hear);
  return () => events.removeEventListener(REFUSED, hear);
}

/** Hears how many requests the API has not answered for 5 seconds, whenever that changes. */
export function onSilence(act: (requests: number) => void): void {
  events.addEventListener(SILENT, (event) => act((event as CustomEvent<number>).detail));
}

let silent = 0;

/** Tells of a request that is not answered in time; returns what ends that. */
function watchSilence(): () => void {
  let told = 0;
  const tell = (by: number) => {
    told += by;
    silent += by;
    events.dispatchEvent(new CustomEvent(SILENT, { detail: silent }));
  };
  const later = setTimeout(() => tell(1), SILENT_MS);
  return () => {
    clearTimeout(later);
    if (told) tell(-1);
  };
}

/** The whole address of a link in an answer: a presigned one, or the api's own route. */
export function toAddress(url: string): string {
  return new URL(url.replace(/^\/v1\//, ""), ROOT).href;
}

/** Joins a path, each part percent-escaped. */
export function path(...parts: string[]): string {
  return parts.map(encodeURIComponent).join("/");
}

async function send(
  method: string,
  where: string,
  body: unknown,
  signal?: AbortSignal,
  revision?: string | null,
  longestMs: number | null = LONGEST_MS,
  more: Record<string, string> = {},
) {
  const [asked = ""] = where.split("?");
  if (!ADDRESS.test(asked) && asked.split("/").some((segment) => RELATIVE.test(segment))) throw NO_ID;
  const late = longestMs === null ? new AbortController().signal : AbortSignal.timeout(longestMs);
  const headers: Record<string, string> = { [HEADER]: "1", ...more };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (revision) headers["If-Match"] = revision;
  const before = signIns;
  const end = longestMs === null ? () => {} : watchSilence();
  let response: Response;
  try {
    response = await fetch(new URL(where, ROOT), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
  } catch (fault) {
    if (signal?.aborted) throw fault;
    throw late.aborted ? TOO_SLOW : UNREACHABLE;
  } finally {
    end();
  }
  if (response.ok) return response;
  const problem = await readProblem(response);
  const isOwnKey = "Authorization" in headers; // which is being tried: the place where it was typed says it
  if (problem.status === 401 && !isOwnKey && before === signIns) {
    events.dispatchEvent(new CustomEvent(REFUSED, { detail: problem }));
  }
  throw problem;
}

async function readProblem(response: Response): Promise<Problem> {
  const wait = Number(response.headers.get("Retry-After")) || null;
  try {
    const body = await response.json();
    const { title, detail, errors } = body as { title: string; detail: string; errors?: Fault[] };
    return new Problem(response.status, title, detail, errors ?? [], wait);
  } catch {
    const title = `The server answered ${response.status} ${response.statusText}`;
    return new Problem(response.status, title, "A server between this page and the API refused the request.", [], wait);
  }
}
