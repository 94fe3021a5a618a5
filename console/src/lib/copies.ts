/** The question of a link, and an export of it, as commands and programs that give the same. */

import type { Link } from "./router.svelte.ts";
import { buildConditions } from "./questions.ts";
import { readSpan } from "./format.ts";

/** As many as one page of the API has at most. */
const LIMIT = 1000;
/** The variable of the shell that has the key, if one is needed. */
const KEY = "INFERENCE_STORE_KEY";
const STORE = new URL("..", document.baseURI).href.replace(/\/$/, "");

function addressOf({ model }: Link, ...more: string[]): string {
  return [STORE, "v1/models", encodeURIComponent(model), ...more].join("/");
}

function bodyOf(link: Link): string {
  return JSON.stringify({ ...buildConditions(link), sort: link.sort, limit: LIMIT });
}

/** A word of a shell. */
function quote(text: string): string {
  return /^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function joinLines(lines: string[]): string {
  return `${lines.join(" \\\n  ")}\n`;
}

/** `isGuarded`: whether the api asks for a key. */
function writeRequest(address: string, isGuarded: boolean, ...more: string[]): string {
  return joinLines([`curl -s ${quote(address)}`, ...(isGuarded ? [`-H "Authorization: Bearer $${KEY}"`] : []), ...more]);
}

function writePost(address: string, body: string, isGuarded: boolean): string {
  return writeRequest(address, isGuarded, "-H 'Content-Type: application/json'", `-d ${quote(body)}`);
}

export function writeCurl(link: Link, isGuarded: boolean): string {
  return writePost(addressOf(link, "inferences/query"), bodyOf(link), isGuarded);
}

/** Requests an export. */
export function writeExport(link: Link, body: Record<string, unknown>, isGuarded: boolean): string {
  return writePost(addressOf(link, "exports"), JSON.stringify(body), isGuarded);
}

/** A part of an export, through the api. */
export function writePart(id: string, file: string, isGuarded: boolean): string {
  return writeRequest(`${STORE}/v1/exports/${id}/parts/1`, isGuarded, `-o ${quote(file)}`);
}

/** The time of a link as the client takes it: how long ago, or instants. */
function readTimes({ time }: Link): [name: string, at: string][] {
  const { from, to } = readSpan(time);
  const times = { since: from && (time.includes("..") ? from : time), until: to };
  return Object.entries(times).filter((each): each is [string, string] => Boolean(each[1]));
}

/** Exports with the command of the client. */
export function writeCommand(link: Link, format: string, isJob: boolean): string {
  const given: [string, string][] = [...(link.filter ? [["filter", link.filter] as [string, string]] : []), ...readTimes(link)];
  return joinLines([
    `istore export ${quote(link.model)} --format ${format}${isJob ? " --job" : ""} -o ${format}`,
    ...given.map(([name, text]) => `--${name} ${quote(text)}`),
    `--url ${quote(STORE)}`,
  ]);
}

/** With the client, which takes the key from the environment. `uses`: what is done with `inferences`. */
function writeClientWith(link: Link, steps: string, uses: string[]): string {
  const filter = link.filter ? [JSON.stringify(link.filter)] : [];
  const given = [...filter, ...readTimes(link).map(([name, at]) => `${name}=${JSON.stringify(at)}`)].join(", ");
  return [
    "from inference_store_client import Store",
    "",
    `model = Store(${JSON.stringify(STORE)}).model(${JSON.stringify(link.model)})`,
    `inferences = model.inferences(${given})${steps}`,
    ...uses,
    "",
  ].join("\n");
}

export function writeClient(link: Link): string {
  const steps = `.sort(${JSON.stringify(link.sort)}).limit(${LIMIT})`;
  return writeClientWith(link, steps, ["for inference in inferences:", "    print(inference.inference_id)"]);
}

export function writeDataset(link: Link, format: string): string {
  return writeClientWith(link, "", [`print(inferences.to_dataset(${JSON.stringify(format)}, ${JSON.stringify(format)}))`]);
}
