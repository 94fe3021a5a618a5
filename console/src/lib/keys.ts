/** API keys: what one may ask for, and how it stands with each. */

import { change, path } from "./api.ts";
import { nameRights, ROLES } from "./rights.ts";
import type { Schemas } from "./types.ts";

export type Grant = Schemas["GrantedRights"];
export type ApiKey = Schemas["ApiKey"];

/** A key with its text, which no other answer has. */
export type MadeKey = Schemas["ApiKeySecret"];

/** A grant that is being written. `rights`: only those of the role `chosen`. */
export interface AskedGrant {
  role: string;
  rights: string[];
  over: "everything" | "project" | "model";
  id: string;
}

export const CHOSEN = "chosen";
const HOUR_MS = 3_600_000;

/** Makes a key. */
export async function makeKey(name: string, grants: AskedGrant[], days: string): Promise<MadeKey> {
  const body = { name, grants: grants.map(writeGrant), ...inHours("expires_at", Number(days) * 24) };
  return (await change<MadeKey>("POST", "keys", body)).data;
}

/** Gives a key a new text. `hours`: how long the one before works; `days`: when the key expires; 0: as it was. */
export async function rotateKey(id: string, hours: number, days: number): Promise<MadeKey> {
  const body = { ...inHours("old_works_until", hours), ...inHours("expires_at", days * 24) };
  return (await change<MadeKey>("POST", path("keys", id, "rotate"), body)).data;
}

/** A field with a time to come; nothing for 0. */
function inHours(name: string, hours: number): Record<string, string> {
  return hours ? { [name]: new Date(Date.now() + hours * HOUR_MS).toISOString() } : {};
}

export async function revokeKey(id: string): Promise<ApiKey> {
  return (await change<ApiKey>("POST", path("keys", id, "revoke"))).data;
}

function writeGrant({ role, rights, over, id }: AskedGrant): Record<string, unknown> {
  const what = role === CHOSEN ? { rights } : { role };
  return over === "everything" ? what : { ...what, [`${over}_id`]: id.trim() };
}

export function listRights({ role, rights }: AskedGrant): string[] {
  return role === CHOSEN ? rights : (ROLES[role] ?? []);
}

/** `reader over model hallway`, and the like. */
export function writeGrants(grants: Grant[]): string {
  return grants.map(({ rights, project_id, model_id }) => `${nameRights(rights)} ${writeOver(project_id, model_id)}`).join("; ");
}

function writeOver(project: string | null, model: string | null): string {
  if (model !== null) return `of model ${model}`;
  return project === null ? "of everything" : `of project ${project}`;
}

type KeyState = "works" | "expired" | "revoked" | "unconfirmed";

export function readState({ revoked_at, expires_at, unconfirmed }: ApiKey, now = Date.now()): KeyState {
  if (revoked_at !== null) return "revoked";
  if (unconfirmed) return "unconfirmed";
  return expires_at !== null && Date.parse(expires_at) <= now ? "expired" : "works";
}

/** Whether the text before the newest one works too. */
export function worksTwice({ old_works_until }: ApiKey, now = Date.now()): boolean {
  return old_works_until !== null && Date.parse(old_works_until) > now;
}
