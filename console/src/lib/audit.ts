/** The entries of the audit, and by what one filters them. */

import type { Schemas } from "./types.ts";

/** In the address as in the API. */
export const AUDIT_NAMES = ["actor", "action", "model_id", "uid", "at_from", "at_to"] as const;

export type AuditEntry = Schemas["AuditEntry"];
