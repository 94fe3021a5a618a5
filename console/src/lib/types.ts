/** The parts of the API's answers that the console shows. */

export interface Model {
  model_id: string;
  project_id: string | null;
  name: string | null;
  task_type: string | null;
  class_labels: string[];
  pending_move: { from_project_id: string | null; effective_at: string } | null;
}

export interface MetadataItem {
  key: string;
  type: string;
  value: string | null;
  flags: string[];
}

export interface Prediction {
  ordinal: number;
  rank: number;
  output_name: string | null;
  label: string | null;
  score: number | null;
  xmin: number | null;
  ymin: number | null;
  xmax: number | null;
  ymax: number | null;
  cx: number | null;
  cy: number | null;
  w: number | null;
  h: number | null;
  angle: number | null;
  prompt: string | null;
  answer: string | null;
  text: string | null;
  start: number | null;
  end: number | null;
  value: number | null;
}

export interface Inference {
  uid: string;
  model_id: string;
  inference_id: string;
  received_at: string;
  indexed_at: string | null;
  pre_ms: number | null;
  model_ms: number | null;
  post_ms: number | null;
  ok: boolean | null;
  http_status: number | null;
  grpc_code: number | null;
  error: string | null;
  trace_id: string | null;
  model_version: string | null;
  task_type: string | null;
  protocol: string | null;
  batch_index: number | null;
  batch_size: number | null;
  data_hash: string | null;
  data_size_bytes: number | null;
  data_content_type: string | null;
  data_storage_key: string | null;
  response_storage_key: string | null;
  width: number | null;
  height: number | null;
  top_label: string | null;
  top_score: number | null;
  prediction_count: number | null;
  flags: string[];
  problem: string | null;
  data_deleted_at: string | null;
  response_deleted_at: string | null;
  metadata?: MetadataItem[];
  predictions?: Prediction[];
}

export interface InferencePage {
  items: Inference[];
  next: string | null;
  searched_back_to: string | null;
  warnings: string[];
}

export interface Group {
  key: Record<string, string | null>;
  measures: Record<string, unknown>;
}

export interface Aggregate {
  groups: Group[];
}

export interface DecidedBy {
  level: string;
  name: string | null;
  rule: number | null;
}

export interface Retention {
  decided_by: DecidedBy | null;
  pending: { begins_at: string; decided_by: DecidedBy | null } | null;
  input_goes_at: string | null;
  response_goes_at: string | null;
  inference_goes_at: string | null;
  limits: { name: string; most: number; level: string }[];
  held_by: { id: string; name: string } | null;
}

export interface Queryable {
  title: string;
  description: string;
  type?: string;
  format?: string;
  items?: { type?: string; format?: string };
  anyOf?: { type?: string; format?: string }[];
  examples?: (string | number | boolean)[];
  "x-cql2-text": string;
  "x-types-seen"?: { type: string; count: number }[];
}

export interface Queryables {
  properties: Record<string, Queryable>;
  $defs: { prediction: { properties: Record<string, Queryable> } };
}

export interface Drawing {
  units: "pixels" | "shares";
  shapes: {
    kind: "box" | "oriented_box" | "polygon" | "keypoints";
    ordinal: number;
    rank: number;
    label: string | null;
    score: number | null;
    points: [number, number][];
  }[];
  problem: string | null;
}

export interface Caller {
  kind: string;
  display_name: string | null;
  name: string;
  rights: string[];
  rights_over_everything: string[];
  session: { expires_at: string } | null;
  switched_on: Record<string, boolean>;
  version: string;
}
