-- Version 2: what workers say of themselves, that one takes nothing new because its process is leaving, and how many
-- workers have died in a row while a run was live there.

ALTER TABLE safepoint.workers ADD COLUMN info text NOT NULL DEFAULT '{}';
ALTER TABLE safepoint.workers ADD COLUMN draining boolean NOT NULL DEFAULT false;
ALTER TABLE safepoint.run_records ADD COLUMN deaths int NOT NULL DEFAULT 0;
