/** The pages: which a link leads to, and the one table of the lists of operators and auditors. */

import type { Component } from "svelte";
import { showId } from "./format.ts";
import { COMPARE, DRIFT, EVALUATE, type Link, OVERVIEW, SAVED } from "./router.svelte.ts";

/** Those below "Operate". */
export const GROUPS = ["Run", "Prove", "Access"] as const;

export interface List {
  name: string;
  title: string;
  /** None: it stands beside the models. */
  group?: (typeof GROUPS)[number];
  /** The right that one needs, over anything. */
  right: string;
  /** Whether it is needed over everything. */
  isWide?: boolean;
  about: string;
  docs: string;
  /** Loaded when it is opened. */
  page: () => Promise<{ default: Component<{ list: List }> }>;
}

export const LISTS: List[] = [
  {
    name: "accounting", title: "Accounting", group: "Run", right: "read", isWide: true,
    about: "Whether every offset and every capture is accounted for.",
    docs: "how-to/accounting.html", page: () => import("../pages/Accounting.svelte"),
  },
  {
    name: "dead-letters", title: "Dead letters", group: "Run", right: "admin",
    about: "Events that could not be indexed.",
    docs: "how-to/accounting.html#dead-letters", page: () => import("../pages/DeadLetters.svelte"),
  },
  {
    name: "retention", title: "Retention", group: "Run", right: "read",
    about: "How long data is kept, and what the runs deleted.",
    docs: "how-to/retention.html", page: () => import("../pages/Retention.svelte"),
  },
  {
    name: "holds", title: "Legal holds", group: "Run", right: "hold",
    about: "What must not be deleted, and why.",
    docs: "how-to/holds.html", page: () => import("../pages/Holds.svelte"),
  },
  {
    name: "erasures", title: "Erasures", group: "Run", right: "read",
    about: "Past and running erasures, newest first.",
    docs: "how-to/erasures.html", page: () => import("../pages/Erasures.svelte"),
  },
  {
    name: "exports", title: "Exports", right: "export",
    about: "Exports to the bucket, newest first, and who downloaded them.",
    docs: "how-to/export-jobs.html", page: () => import("../pages/Exports.svelte"),
  },
  {
    name: "replays", title: "Replays", right: "export",
    about: "Stored requests sent to a model again, and what the answers disagree in.",
    docs: "how-to/replay.html", page: () => import("../pages/Replays.svelte"),
  },
  {
    name: "certificates", title: "Certificates", group: "Prove", right: "read",
    about: "Signed and chained proofs of what was erased.",
    docs: "how-to/proof.html", page: () => import("../pages/Certificates.svelte"),
  },
  {
    name: "audit", title: "Audit", group: "Prove", right: "admin",
    about: "Who did what, newest first.",
    docs: "how-to/access.html#see-who-did-what", page: () => import("../pages/Audit.svelte"),
  },
  {
    name: "reconcile", title: "Reconcile", group: "Prove", right: "admin", isWide: true,
    about: "Whether the bucket and the index agree.",
    docs: "how-to/reconcile.html", page: () => import("../pages/Reconcile.svelte"),
  },
  {
    name: "keys", title: "Keys", group: "Access", right: "admin", isWide: true,
    about: "API keys: who may do what, and until when.",
    docs: "how-to/access.html", page: () => import("../pages/Keys.svelte"),
  },
];

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
/** Those of a model that have an entry. */
const OF_MODEL = new Map<string, Page>([
  [OVERVIEW, makePage(EXPLORE.title, () => import("../pages/Overview.svelte"), EXPLORE.key)],
  [EVALUATE, makePage(EXPLORE.title, () => import("../pages/Evaluate.svelte"), EXPLORE.key)],
  [DRIFT, makePage(EXPLORE.title, () => import("../pages/Drift.svelte"), EXPLORE.key)],
]);
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
  return PAGES.get(link.list) ?? (link.model ? (OF_MODEL.get(link.entry) ?? EXPLORE) : MODELS);
}
