-- A link that a key with an end has created opens no page for longer than the key exists.
ALTER TABLE portal_links ADD COLUMN pages_until timestamptz; -- null: 12 hours after the use of the link
