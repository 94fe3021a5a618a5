/** Which page a link leads to. */

import type { Component } from "svelte";
import { showId } from "./ids.ts";
import { COMPARE, type Link, OVERVIEW, SAVED } from "./link.ts";
import { type List, LISTS } from "./lists.ts";

type PageComponent = Component<{ list: List }>;

export interface Page {
  title: (link: Link) => string;
  /** Loads its code when it is opened, and says what it is a page of. */
  load: () => Promise<{ Page: PageComponent; list: List }>;
  /** What it shows: of something else it begins anew. */
  key: (link: Link) => string;
}

/** `list` is for the pages of lists alone. */
function makePage(title: Page["title"], load: () => Promise<{ default: unknown }>, key: Page["key"], list?: List): Page {
  return {
    title,
    key,
    load: async () => ({ Page: (await load()).default as PageComponent, list: list as List }),
  };
}

const MODELS = makePage(() => "", () => import("../pages/Models.svelte"), () => "");
const EXPLORE = makePage((link) => showId(link.model), () => import("../pages/Explore.svelte"), (link) => link.model);
const SUMMARY = makePage(EXPLORE.title, () => import("../pages/Overview.svelte"), EXPLORE.key);
/** By the name in the place of a list. */
const PAGES = new Map<string, Page>([
  [COMPARE, makePage(() => "Compare", () => import("../pages/Compare.svelte"), () => "")],
  [SAVED, makePage(() => "Saved view", () => import("../pages/SavedView.svelte"), () => "")],
  ...LISTS.map((list): [string, Page] => [
    list.name,
    makePage(() => list.title, list.page, (link) => `${link.list}/${link.entry}`, list),
  ]),
]);

export function findPage(link: Link): Page {
  return PAGES.get(link.list) ?? (link.model ? (link.entry === OVERVIEW ? SUMMARY : EXPLORE) : MODELS);
}
