ALTER TABLE portal_links DROP COLUMN pages_until;
