/** The entries of the audit: what can have been done, and by what one filters them. */

import type { Schemas } from "./types.ts";

/** In the address as in the API. */
export const AUDIT_NAMES = ["actor", "action", "model_id", "uid", "at_from", "at_to"] as const;

export type AuditEntry = Schemas["AuditEntry"];

/** A test holds these names to those of the store. */
export const ACTIONS = [
  "model_registered", "model_changed", "model_moved", "model_removed", "policy_set", "policy_removed",
  "policy_revoked", "retention_requested", "hold_placed", "hold_changed", "hold_released",
  "reconciliation_requested", "metadata_changed", "ground_truth_changed", "inference_erased", "erasure_requested", "erasure_cancelled",
  "erasure_rest_given_up", "data_read", "metadata_read", "links_made", "thumbnails_read", "export_requested",
  "export_cancelled", "export_read", "replay_requested", "replay_cancelled",
  "dead_letter_read", "dead_letter_redriven", "dead_letters_redriven",
  "dead_letter_discarded", "parked_retried", "parked_discarded", "key_created", "key_rotated", "key_revoked",
  "key_confirmed", "view_saved", "view_changed", "view_deleted", "session_started", "session_ended",
  "audit_values_taken", "certificates_begun_anew", "limit_lifted",
];

