-- Version 3: runs that wait for a worker to take them, and the engine that starts them.

-- One row. `name`: 'none', 'procrastinate' or 'external'. `version`: of Procrastinate's tables, if we made them.
CREATE TABLE safepoint.engine (name text NOT NULL, version text);
INSERT INTO safepoint.engine VALUES ('none', NULL);

-- A free run that may start now. `rank`: its turn among all tenants, the lowest first. `job`: at the engine, once that
-- has it. `target`: the worker that is meant to take it, where one is.
CREATE TABLE safepoint.placements (
    run_id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    rank int NOT NULL,
    job bigint,
    target text COLLATE "C",
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX placements_by_rank ON safepoint.placements (rank);
CREATE INDEX placements_by_tenant ON safepoint.placements (tenant, rank);

-- Where a run is to go that is being moved; read when it has stopped.
CREATE TABLE safepoint.moves (
    run_id text COLLATE "C" PRIMARY KEY,
    target text COLLATE "C" NOT NULL
);
