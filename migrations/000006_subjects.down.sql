DROP TABLE subject_tombstones;
DROP TABLE overrides;
DROP TABLE subjects;
