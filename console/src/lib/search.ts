/** What a page has in its address beside its entry: `state=open&reason=not_json`. */

import { router } from "./router.svelte.ts";

export function readSearch(name: string): string {
  return new URLSearchParams(router.link.search).get(name) ?? "";
}

/** The values of some names; an empty text for what is left out. */
export function readValues<Name extends string>(names: readonly Name[]): Record<Name, string> {
  return Object.fromEntries(names.map((name) => [name, readSearch(name)])) as Record<Name, string>;
}

/** The search with changes; what is empty is left out. */
export function changeSearch(changes: Record<string, string>): string {
  const search = new URLSearchParams(router.link.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  return search.toString();
}
