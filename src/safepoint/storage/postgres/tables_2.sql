-- Version 2: what workers say of themselves, and that one takes nothing new because its process is leaving.

ALTER TABLE safepoint.workers ADD COLUMN info text NOT NULL DEFAULT '{}';
ALTER TABLE safepoint.workers ADD COLUMN draining boolean NOT NULL DEFAULT false;
