/** The question of a link as commands that give the same inferences. */

import type { Link } from "./link.ts";
import { buildConditions } from "./questions.ts";

/** As many as one page of the API has at most. */
const LIMIT = 1000;
/** The variable of the shell that has the key, if one is needed. */
const KEY = "INFERENCE_STORE_KEY";

function addressOf(link: Link): string {
  const model = encodeURIComponent(link.model);
  return new URL(`../v1/models/${model}/inferences/query`, document.baseURI).href;
}

function bodyOf(link: Link): string {
  return JSON.stringify({ ...buildConditions(link), sort: link.sort, limit: LIMIT });
}

/** `isGuarded`: whether the api asks for a key. */
export function writeCurl(link: Link, isGuarded: boolean): string {
  const lines = [
    `curl -s '${addressOf(link)}'`,
    ...(isGuarded ? [`-H "Authorization: Bearer $${KEY}"`] : []),
    `-H 'Content-Type: application/json'`,
    `-d '${bodyOf(link).replaceAll("'", `'"'"'`)}'`,
  ];
  return `${lines.join(" \\\n  ")}\n`;
}

/** It goes on to the last page. */
export function writePython(link: Link, isGuarded: boolean): string {
  return [
    "import json",
    ...(isGuarded ? ["import os"] : []),
    "import urllib.request",
    "",
    `address = ${JSON.stringify(addressOf(link))}`,
    `question = json.loads(${JSON.stringify(bodyOf(link))})`,
    'headers = {"Content-Type": "application/json"}',
    ...(isGuarded ? [`headers["Authorization"] = "Bearer " + os.environ["${KEY}"]`] : []),
    "while True:",
    "    request = urllib.request.Request(address, json.dumps(question).encode(), headers)",
    "    with urllib.request.urlopen(request) as answer:",
    "        page = json.load(answer)",
    '    for item in page["items"]:',
    '        print(item["inference_id"])',
    '    if page["next"] is None:',
    "        break",
    '    question["cursor"] = page["next"]',
    "",
  ].join("\n");
}
