/** The entries of the audit, and by what one filters them. */

/** In the address as in the API. */
export const AUDIT_NAMES = ["actor", "action", "model_id", "uid", "at_from", "at_to"] as const;

export interface AuditEntry {
  id: number;
  at: string;
  actor: string;
  client: string | null;
  action: string;
  model_id: string | null;
  uid: string | null;
  detail: Record<string, unknown>;
  /** The entry that says which erasure took the values of this one. */
  taken_by: number | null;
}
