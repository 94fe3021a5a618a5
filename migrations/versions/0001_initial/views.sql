CREATE TABLE saved_view (
    id UUID NOT NULL,
    model INTEGER NOT NULL,
    shared TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C",
    filter TEXT COLLATE "C",
    time TEXT COLLATE "C",
    sort TEXT COLLATE "C" NOT NULL,
    view TEXT COLLATE "C" NOT NULL,
    columns JSONB DEFAULT '[]' NOT NULL,
    revision INTEGER DEFAULT 1 NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    erased_by UUID,
    CONSTRAINT saved_view_pkey PRIMARY KEY (id)
);

CREATE INDEX saved_view_model_created_at_idx ON saved_view (model, created_at);

CREATE UNIQUE INDEX saved_view_private_name_key ON saved_view (created_by, model, name) WHERE shared = 'private';

CREATE UNIQUE INDEX saved_view_project_name_key ON saved_view (model, name) WHERE shared = 'project';
