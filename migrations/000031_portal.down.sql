DROP TABLE limit_requests;
DROP TABLE portal_sessions;
DROP TABLE portal_links;
DROP TABLE portals;
